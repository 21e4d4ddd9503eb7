"""What happens around the training steps: checkpoints, mode discovery, predictions, snapshots."""
