"""What families are built of, in Keras and in each framework: imported only where something is built."""
