"""`python -m cantrip_acp`: the command ``cantrip``, for who knows the Python and not where it keeps its programs."""

from cantrip_acp.cli.main import main

if __name__ == "__main__":
    main()
