"""The domain of popstream: the rules of operations, and the state that they change. Pure except for `rocks_store`."""
