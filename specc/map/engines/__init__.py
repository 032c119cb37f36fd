"""Who hands out the numbers of blocks: processes of this machine, or Ray."""
