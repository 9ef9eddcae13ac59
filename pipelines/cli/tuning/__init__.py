"""Commands about the settings of groups."""
