"""The judge: plays frozen schedules against servers, keeps raw rows, and computes every number from them."""
