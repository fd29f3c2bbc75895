"""Label review: audits of sites, lists of suspicious samples, and decisions of human reviewers."""
