"""Pictures as SVG: of any width, in light and dark, with nothing from elsewhere, and readable without a script."""
