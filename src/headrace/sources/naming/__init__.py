"""What configs name: classes by their names, and functions of modules."""
