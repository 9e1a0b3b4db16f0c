"""The uses: data, head, loss and metrics, one file a task."""
