"""What is best kept: from a graph to a plan, within a budget; and plans that are printed, saved and made anew."""
