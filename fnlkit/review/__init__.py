"""Review: an audit of sites, their suspicious samples, and the decisions of the people who looked at them."""
