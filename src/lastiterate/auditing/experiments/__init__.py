"""What an audit trains and scores: one file for each kind of experiment, and the protocol that all of them speak."""
