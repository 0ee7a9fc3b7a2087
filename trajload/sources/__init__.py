"""Episodes of every layout, read in place: native shards, LeRobot folders."""
