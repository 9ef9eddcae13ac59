"""What a consumer holds: until when, and how it is renewed, finished and given back."""
