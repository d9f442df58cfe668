"""CelebA: forty attributes of 202,599 faces, the network and protocol of the published multi-task tables."""
