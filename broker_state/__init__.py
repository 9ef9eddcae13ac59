"""The domain of popstream: what an operation means, and the state it means it in. Pure but for `rocks_store`."""
