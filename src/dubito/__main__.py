"""`python -m dubito` is `dubito`."""

from dubito.cli import main

if __name__ == "__main__":
    main()
