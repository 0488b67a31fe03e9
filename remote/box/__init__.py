"""Work on a box over ssh, whoever rents it out: commands, files, detached jobs, the dead-man switch."""
