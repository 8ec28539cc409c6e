"""``python -m edge_rt``: the command line, where its script is not on the path."""

from edge_rt.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
