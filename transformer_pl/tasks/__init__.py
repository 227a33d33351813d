"""What the model is trained to do: one file for each task, named by `data.task`."""
