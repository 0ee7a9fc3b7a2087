"""trajload inside other people's training loops. Each module imports its framework where it is used, and only there."""
