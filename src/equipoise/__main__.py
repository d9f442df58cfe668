"""`python -m equipoise` is the `equipoise` command."""

from equipoise.cli import main

main()
