"""`python -m counterpoint`, the same as the console command."""

from counterpoint.cli import main

main()
