"""python -m favorbench."""

from favorbench.cli import main

if __name__ == "__main__":
    main()
