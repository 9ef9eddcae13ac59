"""A shadow of RocketMQ: its broker, its record store and its orderly lanes, without anything of popstream."""
