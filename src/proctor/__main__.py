"""`python -m proctor` is the command `proctor`."""

from proctor.cli.main import main

if __name__ == "__main__":
    main()
