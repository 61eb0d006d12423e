"""What several rooms need and none is about: warnings, locks, storages by identity, modules, torch.compile's frames."""
