"""Commands in addition to those of LightningCLI: each calls the library and prints."""
