"""What a GPU machine should be asked first: `make test-gpu`, or `python3 -m tests.gpu` where there
is no make.
"""
