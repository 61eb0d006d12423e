"""What several rooms need: warnings, locks, storages by identity, modules, the frames of torch.compile."""
