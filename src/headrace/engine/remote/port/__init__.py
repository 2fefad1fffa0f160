"""The port of a trainer: who connects to it, how it is found out whether that is an agent, and who gets the agent."""
