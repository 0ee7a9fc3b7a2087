"""`python -m trajload`: the same as the `trajload` command."""

from trajload.cli import main

if __name__ == "__main__":
    main()
