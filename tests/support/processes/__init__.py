"""Jobs, commands and builders in processes of their own, and what kills them."""
