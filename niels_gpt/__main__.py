"""`python -m niels_gpt`, the same as `niels-gpt`."""

from niels_gpt.cli.entry import main

if __name__ == "__main__":
    main()
