"""What tests share: made rows, oracles, references, broken versions of rules, and servers. Nothing here is a test."""
