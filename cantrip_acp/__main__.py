"""`python -m cantrip_acp` runs the command ``cantrip``. Use it where the command's folder is not on the PATH."""

from cantrip_acp.cli.main import main

if __name__ == "__main__":
    main()
