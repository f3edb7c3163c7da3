"""A data set that does not say whose its rows are, parted into users by Flower Datasets."""
