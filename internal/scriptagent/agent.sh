#!/bin/sh
# An agent without a model. It takes a ticket from qualification through spec, coding and review to done, one run per
# state, with nothing but what every agent has: GAIA_* in the environment, git, and the gaia command.
set -eu
cd "$GAIA_WORKTREE"
echo "$GAIA_TICKET: $GAIA_STATE, attempt $GAIA_ATTEMPT; the prompt has $(wc -l <"$GAIA_PROMPT") lines"

case $GAIA_STATE in
qualification | todo)
	gaia ticket comment --type qualification "Wanted: a file greetings/$GAIA_TICKET.txt that greets whoever reads it. Done when the file is there and ends with a full stop."
	# A ticket that has a workflow keeps it.
	if [ -n "${GAIA_WORKFLOW:-}" ]; then
		gaia ticket move spec
	else
		gaia ticket move --workflow gaia_feature spec
	fi
	;;
spec)
	gaia ticket comment --type spec "One line in greetings/$GAIA_TICKET.txt, and an entry in greetings/INDEX that names it."
	gaia ticket move coding
	;;
coding)
	mkdir -p greetings
	echo "Hello from $GAIA_TICKET." >"greetings/$GAIA_TICKET.txt"
	git add greetings
	git commit --quiet -m "Greet from $GAIA_TICKET: the ticket asks for a file that does so"
	echo "$GAIA_TICKET.txt" >>greetings/INDEX
	git add greetings
	git commit --quiet -m "Name the greeting in the index, where readers look for it"
	gaia ticket comment --type summary "greetings/$GAIA_TICKET.txt is written and named in the index; two commits on $(git branch --show-current)."
	gaia ticket move review
	;;
review)
	# What it accepts is what is committed, not what lies about in the tree.
	git show "HEAD:greetings/$GAIA_TICKET.txt" | grep -q '\.$'
	git show HEAD:greetings/INDEX | grep -qx "$GAIA_TICKET.txt"
	gaia ticket comment --type acceptance "The file is committed, ends with a full stop and is in the index."
	gaia ticket move done
	;;
*)
	gaia ticket comment "This agent does not know the state $GAIA_STATE."
	gaia ticket move human_input
	;;
esac
