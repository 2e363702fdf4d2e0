complete -c paradnn -f -a '(paradnn completion (commandline -cp) 2>/dev/null)'
