"""``python -m controller`` is ``forecrest``."""

from controller.cli import main

if __name__ == "__main__":
    main()
