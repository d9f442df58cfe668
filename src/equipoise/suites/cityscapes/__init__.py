"""Cityscapes at 128 x 256: seven classes and inverse depth, the network and protocol of the published tables."""
