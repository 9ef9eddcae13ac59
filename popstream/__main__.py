"""`python -m popstream` is the `popstream` command."""

from popstream.cli import main

main()
