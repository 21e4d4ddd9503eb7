"""The parts that CoDID is composed of. Each answers one question and can be replaced in a config."""
