"""What files of text hold that is not plain text: recognised, and said with the remedy."""
