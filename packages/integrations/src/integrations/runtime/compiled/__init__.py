"""The runtime under ``torch.compile``: a compiled forward keeps what an eager one keeps."""
