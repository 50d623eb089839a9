"""Run zerowiz as `python -m zerowiz`."""

from zerowiz.cli import main

if __name__ == "__main__":
    main()
