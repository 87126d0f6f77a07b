"""Hooks for serving engines: one `install()` each, never on import, refused for versions that were not read, undone by `uninstall()`."""
