"""What a learner knows: the evaluator, and measures as pure functions of what it recorded."""
