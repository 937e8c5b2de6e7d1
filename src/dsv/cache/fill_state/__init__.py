"""A fill under way, as everyone who shares it sees it: its folder, its plan, its claims, its workers, its room."""
