"""Commands beside LightningCLI's: each parses its arguments, calls the library and prints."""
