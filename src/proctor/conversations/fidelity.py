"""Find what a simulated user got wrong, without a model.

A user that invents facts, stops before its goal, speaks as the agent or repeats itself makes an
agent look worse or better than it is, so its conversation says nothing about the agent. The rules
compare the user's messages with what it knows and with the agent's answers. They prefer silence: a
fault needs a sign that an honest user hardly gives.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from proctor.conversations.user import SimulatedUser

FaultKind = Literal["invented_fact", "stopped_early", "spoke_as_agent", "repeated_itself"]


class UserFault(NamedTuple):
    """Something a simulated user got wrong."""

    kind: FaultKind
    turn: int
    """The user's message, from 1."""
    reason: str


# Data a person would have to know: codes and numbers of two digits or more, addresses.
_DATA = re.compile(
    r"[\w.+-]+@[\w-]+\.[\w.-]+"  # an e-mail address
    r"|https?://\S+"
    r"|\b[A-Z]{1,2}\d\w? \d[A-Z]{2}\b"  # a postcode
    r"|\b(?=[\w#/.:-]*\d)(?=[\w#/.:-]*[A-Za-z])[A-Za-z0-9#]+(?:[-_/.:][A-Za-z0-9]+)*\b"  # a code
    r"|\d[\d,. /:-]*\d"  # a number, date, time or telephone number
)
# Figures of speech that contain numbers.
_SPEECH = re.compile(
    r"\b(?:100\s?%|24/7|\d+(?:st|nd|rd|th)\b|9[- ]to[- ]5"
    r"|\d{1,2}\s?(?:minutes?|mins?|seconds?|secs?)\b|covid-19|mp3s?|4k|5g|3d|b2b)",
    re.IGNORECASE,
)
# A code although it has one digit: "eu-west-1".
_CODE = re.compile(r"[A-Za-z]\w*(?:[-_.]\w+){2,}")
_THOUSANDS = re.compile(r"\b(\d+) ?k\b", re.IGNORECASE)
# A wish is no fact: "could it be 15:45?", "from 9 or so", "can you do 40?".
_PROPOSAL = re.compile(
    r"\b(?:(?:how|what) about|(?:could|can|would|may) (?:it|that|you|we|i) (?:be|do|make it|come)|"
    r"make it|maybe|perhaps|ideally|preferably)\b[^.!?]{0,30}\?"
    r"|\b(?:from|after|before|around|about|under|below) \S+ (?:or so|or later|or earlier|onwards)",
    re.IGNORECASE,
)
_NAMES = re.compile(
    r"\b(?:[Mm]y name(?:'s| is)|[Tt]he name(?:'s| is)|[Mm]y (?:first|last|full) name is|[Tt]his is"
    r"|[Ii]t's under(?: the name)?|[Nn]ame on (?:it|the account|the order) is|[Cc]all me"
    r"|[Ii] live (?:in|at|on)|[Mm]y address is|[Mm]y (?:city|street|town) is"
    r"|[Mm]y (?:wife|husband|partner|son|daughter|brother|sister|friend|boss|colleague))\s+"
    r"(?:the\s+)?([A-Z][\w'’-]+(?:\s+[A-Z][\w'’-]+)*)"
    r"|\b(?:Dr|Mr|Mrs|Ms|Prof|Herr|Frau)\.?\s+([A-Z][\w'’-]+)"
    # Without "my name is", two words: "I'm German" and "I'm Catholic" are no names.
    r"|\b[Ii](?:'m| am)\s+([A-Z][\w'’-]+(?:\s+[A-Z][\w'’-]+)+)"
)
_STREET = re.compile(
    r"\b\d+\s+(?:[A-Z]\w+\s+)+"
    r"(?:Street|St|Avenue|Ave|Road|Rd|Lane|Ln|Court|Ct|Drive|Dr|Boulevard|Blvd|Way|Square)\b"
)
_SLANG = {
    **dict.fromkeys(("u", "ya"), "you"),
    "ur": "your",
    "im": "i'm",
    "ive": "i've",
    "nvm": "never mind",
    "pls": "please",
    "plz": "please",
    "lemme": "let me",
    "gonna": "going to",
    "dont": "don't",
    "cant": "can't",
}
_SLANG_WORD = re.compile(rf"\b(?:{'|'.join(_SLANG)})\b", re.IGNORECASE)
# A word with a capital inside a sentence names something.
_PROPER = re.compile(r"(?<=[a-z0-9,;'’] )[A-Z][a-z][\w'’-]*|(?<=[A-Z][a-z]{2} )[A-Z][a-z][\w'’-]*")
# German writes every noun with a capital: only two in a row name something there.
_GERMAN = frozenset("der die das und ist ich nicht ein eine bitte wie kann möchte mit".split())
_TWO_PROPER = re.compile(
    r"(?<=[a-zäöüß,;] )(?!Sie |Ihr|Frau |Herr )[A-ZÄÖÜ][a-zäöüß]+ [A-ZÄÖÜ][a-zäöüß]+"
)
# Names that everybody knows, and words that some people write with a capital.
_COMMON_NAMES = frozenset(
    "internet visa mastercard paypal amex google apple amazon ebay whatsapp facebook instagram "
    "android iphone windows wifi bluetooth english german french spanish italian european american "
    "christmas easter god sir madam mr mrs ms miss dr hi hello hey thanks thank please yes no ok "
    "okay sorry sure great and but so also just can could would will is are do does did i'm i'll "
    "i've i'd what when where which who why how the this that these those it its my your you we "
    "they "
    "customer service support team manager order account return refund exchange "
    "monday tuesday wednesday thursday friday saturday sunday january february march april may "
    "june july august september october november december".split()
)
_MONTH = re.compile(
    r"\b(?:\d{1,2}(?:st|nd|rd|th)?(?: of)? (?:january|february|march|april|may|june|july|august|"
    r"september|october|november|december)|(?:january|february|march|april|june|july|august|"
    r"september|october|november|december) \d{1,2})\b",
    re.IGNORECASE,
)
_NUMERIC_DATE = re.compile(r"\b\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}\b")
_MONTHS = {
    name: number
    for number, name in enumerate("jan feb mar apr may jun jul aug sep oct nov dec".split(), 1)
}
_NUMBER_WORDS = {
    word: str(digit)
    for digit, words in enumerate(
        ("zero oh", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    )
    for word in words.split()
}
# Four in a row: a code that is spelled out, not a figure of speech.
_SPELLED = re.compile(rf"\b(?:(?:{'|'.join(_NUMBER_WORDS)})\b[\s,-]*){{4,}}", re.IGNORECASE)
# When something was bought, and what kind of customer one is: policies depend on both.
_CLAIMS = re.compile(
    r"^\W*(?:(?:about|around|maybe|some) )?(?P<only>yesterday|last (?:night|week|month|year|\w+day)"
    r"|(?:an?|one|two|three|four|five|six|seven|eight|ten|few|couple of|\d+) "
    r"(?:hours?|days?|weeks?|months?|years?) ago)\b|"
    r"\b(?:bought|ordered|purchased|received|got|paid(?: for)?|picked up) "
    r"(?:it|them|this|that|the \w+)\b[^.?!]{0,30}?\b(?P<when>yesterday"
    r"|last (?:week|month|year|\w+day)"
    r"|(?:a|an|two|three|four|five|six|seven|eight|nine|ten|few|couple of|\d+) "
    r"(?:days?|weeks?|months?|years?) ago"
    r"|on (?:a )?(?:mon|tues|wednes|thurs|fri|satur|sun)day)\b"
    r"|\b(?:since|back in|last|in|during|early|late)(?: last)? "
    r"(?P<day>(?:mon|tues|wednes|thurs|fri|satur|sun)day"
    r"|january|february|april|june|july|august|september|october|november|december"
    r"|week|month|year|winter|spring|summer|autumn)\b(?=[^?]*$)"
    r"|\b(?:was|were|did|had|broke|went|came|got|fell|saw|left"
    r"|\w{3,}ed)\b[^.?!]{0,40}?\b(?P<past>yesterday"
    r"|last (?:night|week|month|year|\w+day)|on (?:mon|tues|wednes|thurs|fri|satur|sun)day"
    r"|(?:\d+|a few|a couple of|two|three|four|five|six) (?:days|weeks|months"
    r"|years) ago)\b(?=[^?]*$)"
    r"|\b(?:s?he|i|they)(?:'s|'m|'re| is| am| are| just turned| will be|'ll be)(?: turning)? "
    r"(?P<age>\d{1,2}|six|seven|eight|nine|ten)(?=\s*(?:[,.!;]|$)| (?:years?|months?) old)"
    r"|\b(?:my|an?) (?P<kind>gold|silver|platinum|diamond|premium|vip|prime|elite|student|business)"
    r" (?:member(?:ship)?|customer|status|account|plan|subscriber)\b",
    re.IGNORECASE,
)
# What a person calls "my card", only the agent calls "your card".
_YOURS = re.compile(
    r"\b(?:your|sus?|tus?|ihre?[nrms]?|deine?[nrms]?|votre|vos|vostr[oaei]|seu|sua|uw|jouw)\s+"
    r"((?:\w+\s+){0,2}?\w+)(?=\s*[.,;:!?]|\s+\w{1,5}\b|\s*$)",
    re.IGNORECASE,
)
# "I left it on your train", "he wants your cake": these are the agent's side's.
_AT_YOUR = re.compile(
    r"\b(?:wants?|likes?|loves?|needs?|tr(?:y|ied)|us(?:e|ed|ing)|b(?:uy|ought)"
    r"|order(?:ed)?) your \w+|"
    r"\b(?:in|on|at|aboard|inside) your\s+(?:\w+\s+){0,2}?(?:train|bus|tram|metro|ferry|ship"
    r"|boat|plane|flight|taxi|hotel|restaurant|caf[eé]|bar|shop|store|branch|library|clinic|gym"
    r"|office|station)\b",
    re.IGNORECASE,
)
_NO_THING = re.compile(
    r"\w+\s+(?:desk|form|line|page|rules?|site|staff|team|terms)\b", re.IGNORECASE
)
# What the agent has as well.
_SHARED = frozenset(
    "name email e-mail mail address phone number message date time code policy".split()
)
_NOT_NAMES = frozenset(
    "a an the my your our i it its about for not just really still what why how ridiculous urgent "
    "great good bad fine unacceptable regarding concerning taking getting very so too".split()
)

# A customer says "my order"; "your order" is the desk's. "Your return policy" is a customer's.
_THEIRS = (
    r"\byour (?:own |recent |entire )?(?:orders?|account|refund|return|exchange|request|identity"
    r"|booking|reservation|purchase|subscription|frustration|concerns?|inquiry|enquiry|membership"
    r"|ticket|case|claim|loan|policy number|payment method|eligibility|information)\b"
    r"(?!'s? )(?! (?:polic|process|system|site|web|page|team|department|desk|form|window|terms"
    r"|app\b|guy|staff|people|service|line|hotline|procedure|rules?|counter|cent(?:er|re)"
    r"|number for))"
)
_ITEM = (
    r"(?:orders?|refunds?|returns?|exchanges?|bookings?|reservations?|tickets?|cases?|claims?|"
    r"disputes?|replacements?|requests?|appointments?|subscriptions?|renewals?|complaints?)"
)
_AGENT_VOICE = re.compile(
    rf"{_THEIRS}"
    rf"|\bi(?:'ll| will|'ve| have| can|'m)\b[^.?!]{{0,40}}\b{_ITEM}\b[^.?!]{{0,15}}for you\b"
    r"|\bi(?:'ve| have)(?: now| just)? (?!asked|called|emailed|contacted|messaged|texted|trusted|"
    r"answered|showed|warned|informed)\w+ed you (?:on|into|for|in|to|a|an)\b"
    r"|\byour (?!team|web|site|service|staff|support|company|polic|app\b|prices|colleague|agent|"
    r"system|line|shop|store|email|message)\w+(?: \w+)? (?:has|have) been (?:now |successfully )?"
    r"\w+ed\b"
    r"|\byour \w+ (?:will be|is|are) (?:now )?(?:waiting|ready for (?:pick|collection))"
    r"|\bwhat can (?:i|we) do for you\b|\bwelcome to (?:our|the|\w+ (?:bank|library|airlines?))\b"
    r"|\b(?:happy|glad|pleased|delighted) to (?:help|assist)(?: (?:you|with that)|\s*[.,!])"
    r"|\bmay i know (?:the|your)\b|\blet me (?:just )?confirm (?:the|your)\b"
    r"|\bfor your (?:security|safety|convenience|records|protection)\b"
    r"|\bplease (?:answer|select|choose|hold|stay on|bear with|have your)\b"
    r"|\bwe(?:'re| are) (?:open|closed|unable|happy|currently)\b"
    r"|\bi(?:'ll| will| can) help(?: you)? with (?:that|this)\b"
    r"|\b(?:hate|sorry) to see you (?:go|leave)\b|\bfits? your (?:needs|budget)\b"
    r"|\bwhile i (?:open|check|look up|pull up|review) (?:the|your)\b"
    r"|\b(?:as|i(?:'m| am)) (?:a |the |your )?(?:customer service|support|service|front desk) "
    r"(?:agent|representative|assistant)\b|\b(?:reception|support|service desk) speaking\b"
    r"|<function\b|</?tools?\b|\"parameters\"\s*:"
    r"|\bhow (?:can|may|could) (?:i|we) (?:help|assist)"
    r"|\banything else (?:(?:that )?(?:i|we) can|you (?:need help|would like|'d like|want me))"
    r"|\b(?:can|may|could) i (?:help|assist) you\b"
    r"|\bas an (?:ai|assistant|artificial)"
    r"|\bi(?:'m| am) (?:an ai|your (?:virtual )?assistant|here to (?:help|assist))"
    r"|\bi(?:'d| would|'ll| will) be (?:happy|glad) to (?:help|assist) you"
    r"|\bi(?:'ve| have)?(?: (?:now|just|successfully|already|gone ahead and))* (?:processed|"
    r"cancell?ed|updated|issued|refunded|changed|placed|approved|initiated|submitted|exchanged|"
    r"returned|credited|booked|reset|sent|located|found|arranged|scheduled|added|removed|blocked)"
    r"\b[^.?!]{0,40}\bfor you\b"
    r"|\byour (?:payment|password|package|address|card|seat|room|flight)\b[^.?!]{0,60}"
    r"\b(?:has been|have been|will be|is being|was|is) (?:now |successfully |all )*"
    r"(?:cancell?ed|processed|refunded|updated|issued|shipped|approved|"
    r"credited|exchanged|changed|booked|reset|confirmed|delivered|blocked|set)"
    r"|\bi(?:'ll| will| can|'m going to) (?:look up|look into|check|pull up|process|cancel|update|"
    r"issue|refund|arrange|take care of|do|book|reset) (?:that|this|it) for you"
    r"|\blet me (?:check|look up|pull up|look into|verify|see what i can do)\b[^.?!]{0,20}\bfor you"
    r"|\b(?:transfer|connect|escalat)\w* you (?:to|with)\b"
    r"|\b(?:could|can|may|would) you (?:please )?(?:provide|give|share|confirm|tell) (?:me )?"
    r"(?:with )?your\b"
    r"|\b(?:may|can|could) i (?:please )?(?:have|get|ask for) your (?!name\b)"
    r"|\bplease (?:provide|confirm|share|verify|enter) (?:me )?(?:with )?your\b"
    r"|\bwhat(?:'s| is) (?:the|your) (?:order|account|booking|reservation|customer) (?:number|id)\b"
    r"|\bwould you like me to (?!send|upload|repeat|spell|give|read|describe|bring|wait|call|show)"
    r"|\bi(?:'ll| will|'ve| have) (?!spell|repeat|upload|read|hold|look|copy|type|attach|paste)\w+ "
    r"[^.?!]{0,40}\bfor you\b"
    r"|\bwould you like (?:a|an|to (?:return|exchange|cancel|proceed|keep|change|add|book)|me to "
    r"(?:proceed|process|cancel|refund|go ahead|book|arrange))\b"
    r"|\bwhat would you like to (?:return|exchange|cancel|do|change|book|order)\b"
    r"|\b(?:i|we) (?:need|have) to verify\b|\bfor (?:security|verification) purposes\b"
    r"|\bapologi[sz]e for (?:the|any|this) (?:inconvenience|delay|trouble)"
    r"|\bwe(?:'ll| will|'ve| have| can|'re going to) (?:refund|reimburse|credit|issue|process|"
    r"escalate|processed|issued|refunded|received your|offer you)\b"
    r"|\byou(?:'ll| will| should) (?:soon |shortly )?(?:receive|get|see) (?:a|an|the|your) "
    r"(?:e-?mail|refund|confirmation|label|credit|replacement|notification|amount)\b"
    r"|\bdear (?:valued )?(?:customer|guest|client)\b"
    r"|\bthank(?:s| you) for (?:contacting|calling|reaching out|choosing|getting in touch|your "
    r"(?:patience|call|message|inquiry|order|purchase|interest|business)|providing|shopping)"
    r"|\b(?:helfe ich ihnen|ihnen (?:sonst )?(?:noch )?(?:weiter)?helfen|(?:le|te) ayudo|ayudarles?"
    r" en|(?:vous|t') ?aider|aiutarla|für sie (?:erledigt|ge\w+t|ver\w+t|storniert))\b"
    r"|\b(?:gracias por (?:contactar|llamar|elegir)|vielen dank für ihre?n? (?:anfrage|anruf"
    r"|bestellung|einkauf)|merci (?:d'avoir (?:appelé|choisi|contacté)|de votre (?:appel|commande))"
    r"|grazie per aver(?:ci)? (?:chiamato|contattato|scelto))\b"
    r"|\bi (?:can|could) (?:also )?offer you\b|\bi can offer (?:a|an|the)\b"
    r"|\bshall i (?:set|book|go ahead|proceed|process|arrange|open|file|cancel|refund|order|add"
    r"|reserve|check|place|apply|register|activate|transfer|issue)\b"
    r"|\bwhich (?:one |of these |option )?would you (?:prefer|like)\b"
    r"|(?<!can )(?<!could )(?<!if )\bwe (?:do |currently |also |only )?(?:have"
    r"|offer) (?:\w+ ){0,2}(?:openings?|slots?"
    r"|availability|appointments?|options?|packages?|plans?|in stock|several|tables?|rooms?"
    r"|seats?)\b"
    r"|\bi(?:'ve| have| can see| see)(?: now| just)? (?:found|located|pulled up|looked up|opened) "
    r"(?:the|this|that|it|your)\b(?! (?:email|mail|letter|receipt|page|link|app|number|website"
    r"|box))"
    r"|\bi(?:'ll| will| am going to|'m going to|'ve|'ve just|have) (?:now )?(?:file|filed|register"
    r"|registered|resent|resend|reissued?|rebooked?|processe?d?|issued?|created?|open|opened|log"
    r"|logged|escalated?) (?:a|an|the|this) (?!complaint|lawsuit|chargeback|dispute|account|review"
    r"|case against|claim against)"
    r"|\bplease (?:describe|state|specify|bring|note that|be aware|allow)\b"
    r"|\b(?:please|kindly) (?:provide|share|enter|send|give)(?: me"
    r"| us)? (?:\w+ ){1,3}?(?:numbers?|names?"
    r"|details|information|dates?|id)\b|\bkindly (?:confirm|note|wait|bear)\b"
    r"|\bi(?:'ll| will) need (?:the|your) (?:\w+ ){0,2}(?:names?|numbers?|ids?|e-?mail|details"
    r"|reference|username|address|confirmation)\b"
    r"|\bso (?:that )?(?:we|i) (?:can|may) (?:investigate|assist|help|process|locate|find|verify"
    r"|look"
    r"|proceed)\b|\bwe apologi[sz]e\b|\blet me (?:pull|bring|look) (?:that|this|it|your \w+) up\b"
    r"|\bi(?:'ll| will|'ve| have) (?:sort(?:ed)?|fix(?:ed)?|handled?|do|done|get|take care of|got) "
    r"(?:it|this|that)(?: out)? for you\b"
    r"|\b(?:will|should) (?:now )?be (?:credited|refunded|delivered|processed|shipped|dispatched"
    r"|completed|updated|resolved|sent|emailed|contacted|notified) (?:[^.?!]{0,30} )?(?:within"
    r"|shortly"
    r"|in the next|by the end)\b"
    r"|\b(?:can|could|may) i (?:please )?(?:take|have|get) (?:the|your) (?:full name|first line"
    r"|\w+ address|e-?mail|post ?code|zip|phone|date of birth|account number|order number"
    r"|booking (?:number|reference)|reference number|last (?:four|4))"
    r"|^\s*(?:assistant|agent|support|representative|bot)\s*:"
    r"|\"(?:tool_calls?|function_call|arguments)\"\s*:|<tool_call>"
    r"|\b[a-z]+(?:_[a-z]+)+\((?:\w+\s*[=:]|[\"'{\[])",
    re.IGNORECASE | re.MULTILINE,
)
# What only the agent's side calls "our", unless the user is a company itself.
_OUR = re.compile(
    r"\bour (?:polic|system\b|records\b|customers?\b|support\b|website\b|stores?\b|branch|opening "
    r"hours|warehouse|terms\b|database|representative|specialist|team\b)",
    re.IGNORECASE,
)
_COMPANY = re.compile(
    r"\b(?:compan(?:y|ies)|ltd|inc|gmbh|llc|corp|business|owner|founder|accountant|office|manager"
    r"|team)\b",
    re.IGNORECASE,
)
_GIVING_UP = re.compile(
    r"\b(?:never ?mind|forget (?:it|about it|the whole thing)|i give up"
    r"|i(?:'ll| will) (?:just )?give up|thanks? (?:you )?any ?way"
    r"|let'?s (?:just )?(?:drop (?:it|this)|stop (?:here|this|now)|leave it|end (?:this|it) here"
    r"|call it|forget (?:it|this|about (?:it|this)))|no need any ?more"
    r"|(?:don'?t|do not) worry about it|think (?:it|this) over|think about it"
    r"|get back to you|i(?:'ll| will) (?:just )?(?:stay|remain) (?:a|with)\b|wrong chat"
    r"|(?:i'?m|i am) (?:leaving|out)\s*[.!]"
    r"|(?:i can|i'll|i will) (?:just )?live with (?:it|that)|(?:somewhere|someone) else\s*[.,!]"
    r"|(?:go|ask|try|look) elsewhere|(?:too (?:complicated|much (?:trouble|hassle|effort)))"
    r"|i(?:'ll| will) (?:just )?(?:stay|stick|fly|go|manage|carry on) (?:with|on|as)\b[^.?!]{0,30}"
    r"\b(?:old|original|current|before|is)\b"
    r"|i don'?t (?:care|want it|need it|need this|want this|want to (?:do this|continue|go on))"
    r"(?: any ?more| now| right now)?\s*[.,!;]|i don'?t (?:care|want it|need it) any ?more"
    r"|i no longer (?:want|need|wish)"
    r"|(?:it )?(?:doesn't|does not) (?:really )?matter(?: any ?more)?\s*[.,!;]"
    r"|i(?:'ll| will) (?:call|try|come back|do (?:it|this)|deal with (?:it|this)|handle "
    r"(?:it|this)|sort (?:it|this) out|think about it|contact you|write)(?: (?:again|back))? ?"
    r"(?:later|another (?:time|day)|some other (?:time|day)|tomorrow|next week|myself)"
    r"|(?:maybe|perhaps) (?:later|another time|some other time)"
    r"|i(?:'m| am) (?:done (?:here|with this)|going to (?:end|leave|close) (?:this|the) "
    r"(?:chat|conversation))|end (?:this|the) (?:chat|conversation)"
    r"|i(?:'ve|'ll| have| will)? ?(?:got to|gotta|have to|need to|must) (?:go|run|leave)"
    r"(?: now)?\s*[.,!;]"
    r"|(?:i(?:'d|'ll| would| will) (?:rather |just )*|i(?:'ll| will) )(?:keep (?:it|them)"
    r"|throw (?:it|them) (?:away|out))"
    r"|no (?:return|refund|exchange|change|replacement) (?:is )?(?:needed|necessary)"
    r"|(?:i|we)(?:'ll| will)(?: (?:just|probably|simply))+ (?!wait|check|hold|look|read|type|send"
    r"|give|say|explain|tell|ask|need|take (?:the|that|it|this)|have|add|go (?:ahead|with|for)"
    r"|repeat"
    r"|be"
    r"|get (?:my|the|it)|find|try (?:that|it|this)|confirm|pay|write (?:it|that) down|copy"
    r"|call (?:it|them) )\w+|(?:i|we)(?:'ll| will)\b[^.?!,]{0,60}\b(?:instead|elsewhere|on my own"
    r"|myself)\s*[.!,]"
    r"|(?:i|we)(?:'ll| will) (?:buy|get|order) (?:a|an|some|myself a) (?:new|different|another)\b"
    r"|(?:no|not (?:got )?(?:the|any|enough)|haven'?t got (?:the )?|don'?t have (?:the )?) ?"
    r"(?:time|patience|energy) (?:for (?:this|it|that)|right now|any ?more)"
    r"|(?:not|isn't|wasn't) (?:that |so |really |all that )*important"
    r"|(?:we're|i'm|we are|i am) (?:switching|moving to another|changing (?:bank|provider"
    r"|supplier))"
    r"|(?:my \w+|some(?:body|one)|another \w+) (?:will|can|'ll) (?:just )?(?:repair|fix|do|handle"
    r"|make|help|take care of)\b|forget (?:you|that|about you)\b|(?:all |getting )a bit much for me"
    r"|too (?:lazy|tired|busy|late|long|stressed)\b(?=[^?]*$)|(?<=. )good day\s*[.!]?$"
    r"|not worth (?:the )?\w+(?:ing|fort)\b|forget i (?:asked|said|wrote)|i(?:'d| had) better"
    r"|not (?:that |so |really |all that )*urgent|some other time|i(?:'ll| will) pass\b"
    r"|thanks for nothing|too slow\b|leave it(?=\s*[,.!]|$)"
    r"|not worth (?:it|my time|the)|i(?:'ve| have) changed my mind"
    r"|leave it (?:as it is|at that)|don'?t bother|skip (?:it|the whole thing)[.,!])",
    re.IGNORECASE,
)
_LEAVING = re.compile(
    r"\b(?:see you(?: (?:soon|around|later))?\s*[.!]|cheers\s*[.!]?$)"
    r"|\b(?:good ?bye|bye(?:-bye)?|take care"
    r"|have a (?:nice|good|great) (?:day|one|evening|weekend)"
    r"|that(?:'s| is| was| will be|'ll be| would be) (?:all|everything|it(?:,| for (?:now|today)))"
    r"(?! (?:i|we|that|you|the|of|about|there|my|on)\b)|talk to you later)\b",
    re.IGNORECASE,
)
# The agent asks to hear it again.
_AGAIN = re.compile(
    r"\b(?:repeat|rephrase|once more|say (?:that|it) again|again,? please|clarify"
    r"|(?:did not|didn't|don't|do not) (?:quite )?(?:get|catch|understand|follow) (?:that|you|it))",
    re.IGNORECASE,
)
_REFUSAL = re.compile(
    r"\b(?:cannot|can ?not|can't|unable|not able|not allowed|not possible|not eligible|ineligible"
    r"|isn't possible|isn't eligible|won't be able|do not have"
    r"|don't have (?:the )?(?:ability|access)"
    r"|against (?:our|the) policy|policy (?:does not|doesn't)|transfer(?:ring|red)? you"
    r"|human agent|denied|refuse|no longer (?:possible|available)|must decline|out of stock"
    r"|(?:no (?:es|será)|nicht|n'est pas|non è) (?:posible|möglich|possible|possibile)"
    r"|no (?:puedo|podemos|quedan)"
    r"|(?:kann|können) (?:ich|wir)\b[^.?!]*\bnicht|ne (?:peux|pouvons)|non (?:posso|possiamo)"
    r"|not available|could not find|couldn't find|no (?:such )?(?:order|account|record))\b",
    re.IGNORECASE,
)
_WORD = re.compile(r"[^\W_]+")
# Words that two phrasings of one message need not share.
_FUNCTION_WORDS = frozenset(
    "a an and are as at be because but can could d do for from get have hello hi i if in is it "
    "its just ll like m me my of on or please re s since so some t that the then there this to ve "
    "want was we with would you your".split()
)

SHORT = 4
"""Words up to which saying the same again is ordinary ("yes, please")."""
SAME, ECHO, OTHER = 0.85, 0.8, 0.6
"""Share of common words from which two messages of the user are the same, from which a message is
the agent's own, and below which two answers differ."""


def user_faults(
    user: SimulatedUser,
    history: Sequence[Mapping[str, str]],
    *,
    stopped: bool = False,
) -> list[UserFault]:
    """Return what the user got wrong in a conversation, in order.

    `stopped` says that the user ended it: that is a fault if neither the goal is reached nor the
    agent has refused.
    """
    faults: list[UserFault] = []
    known = _text([user.persona, user.goal, user.opening or "", user.knows])
    hidden = user.does_not_know if isinstance(user.does_not_know, Mapping) else {}
    said: list[tuple[set[str], set[str]]] = []
    own = _own_things(user)
    answer, turn, reached, refused = "", 0, False, False
    for message in history:
        text = message["content"]
        if message["role"] == "user":
            text = _SLANG_WORD.sub(lambda found: _SLANG[found[0].casefold()], text)
        else:
            known += "\n" + text.casefold()
            answer = text
            reached = reached or user.reached(text)
            refused = refused or _REFUSAL.search(text) is not None
            continue
        turn += 1
        words, before = _words(text), _words(answer)
        if invented := _invented(text, known, hidden):
            faults.append(
                UserFault("invented_fact", turn, f"states {invented!r}, which it cannot know")
            )
        echo = len(words) > SHORT and _common(words, before) >= ECHO
        voice = (
            _AGENT_VOICE.search(text)
            # The first message may complain: "your pump leaks".
            or (_yours(text, own) if turn > 1 else None)
            or _asks_for(text, user.knows)
            or (None if _COMPANY.search(known) else _OUR.search(text))
        )
        evades = _evades(text, answer, user.knows)
        if turn > 1 and not (reached or voice):
            voice = (_MAYBE_AGENT.search(text) if evades else None) or _announces(text, user)
        if voice or echo:
            what = f"says {voice[0]!r}" if voice else "repeats the agent's answer"
            faults.append(UserFault("spoke_as_agent", turn, f"{what}, as the agent would"))
        again = (
            len(words) > SHORT
            and not _AGAIN.search(answer)
            and any(
                _common(before, heard) < OTHER
                and (
                    _common(words, own) >= SAME
                    or (len(_stems(words)) >= SHORT and _common(_stems(words), _stems(own)) >= SAME)
                )
                for own, heard in said
            )
        )
        # An agent that repeats its question gets the same answer, but not a third time.
        stuck = sum(len(words) > SHORT and own == words for own, _ in said) > 1
        if again or stuck:
            faults.append(UserFault("repeated_itself", turn, "repeats an earlier message"))
        said.append((words, before))
        gives_up = (
            _GIVING_UP.search(text)
            or (user.stop and _LEAVING.search(text))
            or (_ASKED.search(answer) and _instead(text, user.knows))
            or (evades and _MAYBE_LEAVING.search(text))
        )
        if gives_up and turn > 1 and not (reached or refused):
            faults.append(UserFault("stopped_early", turn, f"gives up ({gives_up[0]!r})"))
    if stopped and user.stop and not (reached or refused):
        early = any(fault.kind == "stopped_early" for fault in faults)
        if not early:
            faults.append(UserFault("stopped_early", turn + 1, "ends before its goal is reached"))
    return faults


def _invented(text: str, known: str, hidden: Mapping[str, Any]) -> str | None:
    """Return the first fact of a message that is neither the user's nor in an answer."""
    folded = text.casefold()
    for value in hidden.values():
        shown = str(value).casefold()
        if shown and shown in folded and shown not in known:
            return str(value)
    plain = _THOUSANDS.sub(r"\g<1>000", _PROPOSAL.sub(" ", _SPEECH.sub(" ", text)))
    compact = re.sub(r"[\s,.#/:-]", "", known)
    figures = {re.sub(r"[\s,.#/:-]", "", found) for found in re.findall(r"[\w.,:/-]+", known)}
    figures |= set(_WORD.findall(known))
    # "30 more": the difference of 80 and 110.
    amounts = sorted({int(each) for each in figures if each.isdecimal() and len(each) < 7})[:40]
    figures |= {str(one - other) for one in amounts for other in amounts if one > other}
    figures |= {str(one + other) for one in amounts for other in amounts if one > other}
    for found in _DATA.finditer(plain):
        fact = found[0].strip(" ,.:-#/")
        bare = re.sub(r"[\s,.#/:-]", "", fact.casefold())
        digits = sum(char.isdigit() for char in bare)
        # Two or three digits are part of many longer numbers.
        within = bare in compact if len(bare) > 3 else bare in figures
        if (
            ("@" in fact or "//" in fact or digits > 1 or _CODE.fullmatch(fact))
            and not within
            and not _same_date(bare, known)
        ):
            return fact
    for found in _MONTH.finditer(text):
        name = re.search(r"[a-z]{3,}", found[0].casefold())
        digits = re.search(r"\d+", found[0])
        assert name is not None
        assert digits is not None
        month = f"{_MONTHS[name[0][:3]]:02d}"
        day = f"{int(digits[0]):02d}"
        if name[0] not in known and not re.search(rf"\b(?:{month}\D{day}|{day}\D{month})\b", known):
            return found[0]
    for found in _STREET.finditer(text):
        if re.sub(r"[\s,.#/:-]", "", found[0].casefold()) not in compact:
            return found[0]
    for found in _SPELLED.finditer(text):
        if (
            "".join(_NUMBER_WORDS[word] for word in _WORD.findall(found[0].casefold()))
            not in compact
        ):
            return found[0].strip(" ,-")
    for found in _CLAIMS.finditer(text):
        if (
            found["only"]
            or found["when"]
            or found["past"]
            or found["day"]
            or found["age"]
            or found["kind"]
        ).casefold() not in known:
            return found[0]
    for found in _NAMES.finditer(text):
        named = found[1] or found[2] or found[3]
        parts = [part for part in named.split() if part.casefold() not in _NOT_NAMES]
        if parts and not any(part.casefold().strip("'’.,") in known for part in parts):
            return " ".join(parts)
    german = len(_GERMAN & set(_WORD.findall(known))) > 2
    for found in (_TWO_PROPER if german else _PROPER).finditer(text):
        name = re.sub(r"['’]s$", "", found[0].casefold())
        menu = ">" in text[max(0, found.start() - 2) : found.end() + 2]  # Settings > Security
        if name not in known and name not in _COMMON_NAMES and not menu:
            return found[0]
    return None


def _own_things(user: SimulatedUser) -> set[str]:
    """Return what the user calls "my": what its facts and its goal name."""
    of_facts = {word for name in (*user.knows, *user.does_not_know) for word in _words(str(name))}
    # A capital makes a name, which may be that of a shop.
    of_facts |= {
        word for value in user.knows.values() for word in re.findall(r"\b[a-z]{5,}", str(value))
    }
    of_facts = {word for word in of_facts if len(word) > 2}
    mine = re.findall(
        r"\b(?:the|my|an?|one's|die|das|den|el|la|las?|los|le|les|il) (\w{4,})",
        user.goal.casefold(),
    )
    return (of_facts | set(mine)) - _SHARED - _FUNCTION_WORDS


def _yours(text: str, own: set[str]) -> re.Match[str] | None:
    """Return where a message calls something of the user's own "your": "your card is blocked"."""
    text = _AT_YOUR.sub(" ", text)
    return next(
        (
            found
            for found in _YOURS.finditer(text)
            if own & _words(found[1]) and not _NO_THING.match(text, found.start(1))
        ),
        None,
    )


_ASKED = re.compile(r"\?\s*$")
_OWN_PLAN = re.compile(
    r"\b(?:i|we)(?:'ll| will| shall|'m going to| am going to|'m off| must)\s+(?:(?:just|have|to"
    r"|probably"
    r"|simply|now)\s+)*(?!not|wait|check|hold|look|read|type|send|give|say|explain|tell|ask|need"
    r"|take|have"
    r"|add|go|repeat|be|get|find|try|confirm|pay|copy|see|pick|come|collect|bring|use|show|let"
    r"|keep|accept"
    r"|choose|know|remember|forward|upload|attach|provide|answer|want|like|prefer|appreciate"
    r"|spell|start"
    r"|call|leave|stay|travel|fly|arrive|put|note|write|also|still|then|gladly|happily)\w+",
    re.IGNORECASE,
)


def _instead(text: str, knows: Mapping[str, Any]) -> re.Match[str] | None:
    """Return where a message states an own plan and no fact, in place of an answer."""
    folded = text.casefold()
    if "?" in text or any(str(value).casefold() in folded for value in knows.values()):
        return None
    return _OWN_PLAN.search(text)


# Signs that count where a message does not give the fact that was asked for.
_MAYBE_LEAVING = re.compile(
    r"\b(?:let's not|on second thoughts?|gotta|got to|have to|must|bye|ciao|see ya|good night"
    r"|tired|lazy"
    r"|busy|boarding|run|late|later|lost|without|instead|myself|enough|skip|stop|drop|quit|leave"
    r"|leaving"
    r"|don't (?:want|need|like|care|trouble|feel)|doesn't|no longer|no need|never|anyway|nothing"
    r"|after all"
    r"|rather|sorted|solved|fine as|keep|forget)\b",
    re.IGNORECASE,
)
_MAYBE_AGENT = re.compile(
    r"\b(?:certainly|of course|sure|perfect|absolutely|great|no problem|understood|thank you"
    r"|thanks|got it"
    r"|delighted|happy|glad|assist|kindly)\b[^?]*\b(?:i'd|i'll|i've|i can|i have|we|your?|may i"
    r"|could i"
    r"|which|what)\b|\b(?:can|could|would) you (?:please )?(?:tell|give|share|provide|confirm"
    r"|let me know)"
    r"|\b(?:may|might|could) i (?:know|have|ask)|\blet me (?:just )?(?:confirm|check|verify|note)",
    re.IGNORECASE,
)
_CANNOT_SAY = re.compile(
    r"\b(?:(?:do|did|can|could|was|am|have)(?:n'?t| not|not)|no idea|no clue|unsure|not sure"
    r"|private"
    r"|moment|second|sec|minute|hold on|wait|looking|where|why|how|already|told|said|isn't|same)\b",
    re.IGNORECASE,
)


def _evades(text: str, answer: str, knows: Mapping[str, Any]) -> bool:
    """Return whether the agent asked for a fact that the user knows and the message has none."""
    asked = _stems(_words(" ".join(re.findall(r"[^.!?]*\?", answer))))
    wanted = {name: _stems(_words(name)) for name in knows}
    if not any(asked & stems for stems in wanted.values()) or _CANNOT_SAY.search(text):
        return False
    facts = _stems(_words(_text(knows.values())))
    return not facts & _stems(_words(text))


_FOR_A_FACT = (
    r"\b(?:what(?:'s| is| was)|(?:can|could|may|might) i (?:please )?(?:have|take|get|ask for|see)|"
    r"(?:give|tell|provide|send|show) me|(?:provide|confirm|enter|verify)|i(?:'ll| will)?(?: just|"
    r" also)? need) (?:with )?(?:the|your) (?:\w+ )?"
)
_IDENTIFYING = re.compile(
    r"number|code|id\b|e-?mail|phone|account|booking|reference|birth|address", re.IGNORECASE
)


def _asks_for(text: str, knows: Mapping[str, Any]) -> re.Match[str] | None:
    """Return where a message asks for a fact that identifies the user, who knows it."""
    names = "|".join(re.escape(name) for name in knows if _IDENTIFYING.search(name))
    return re.search(rf"{_FOR_A_FACT}(?:{names})\b", text, re.IGNORECASE) if names else None


_DO_YOU_WANT = re.compile(r"\byou (?:want|like|prefer|wish|need)(?: me)? to (\w+)", re.IGNORECASE)
_DONE = re.compile(
    r"\b(?:(?:has|have) (?:now |just |successfully )?been|(?:is|are) now) (?:successfully )?"
    r"(\w+ed)\b",
    re.IGNORECASE,
)
_NOT_SO_YET = re.compile(
    r"\?|\b(?:if|when|once|until|till|unless|whether|after|before|as soon as|so that|make sure|sure"
    r"|please|want|wish|hope|need|like|not|never|wait\w*|says?|said|told|wenn|bis|bitte|sobald)\b",
    re.IGNORECASE,
)


def _announces(text: str, user: SimulatedUser) -> re.Match[str] | None:
    """Return where a message says what only an answer can: that the goal is reached, or wanted."""
    wanted = {word[:4] for word in _WORD.findall(user.goal.casefold()) if len(word) > 3}
    for found in _DO_YOU_WANT.finditer(text):
        if found[1].casefold()[:4] in wanted:
            return found
    for sentence in re.findall(r"[^.!?]+[.!?]?", text):
        if _NOT_SO_YET.search(sentence):
            continue
        for pattern in user.stop:
            if found := re.search(rf"\b(?:{pattern})\b", sentence, re.IGNORECASE):
                return found
        for found in _DONE.finditer(sentence):
            if found[1].casefold()[:4] in wanted:
                return found
    return None


def _same_date(bare: str, known: str) -> bool:
    """Return whether a date of eight digits is a known one in another order or in words."""
    if len(bare) != 8 or not bare.isdigit():
        return False
    dates = [re.sub(r"\D", "", date) for date in _NUMERIC_DATE.findall(known)]
    for found in _MONTH.finditer(known):
        month = _MONTHS[re.findall("[a-z]{3,}", found[0].casefold())[0][:3]]
        year = re.match(r"\D{1,2}(\d{4})\b", known[found.end() :])
        day = int(re.findall(r"\d+", found[0])[0])
        dates += [f"{day:02d}{month:02d}{year[1]}"] if year else []
    return any(sorted(date) == sorted(bare) for date in dates)


def _text(parts: Iterable[Any]) -> str:
    return "\n".join(str(part) for part in parts).casefold()


def _words(text: str) -> set[str]:
    plain = re.sub(r"\bcan(?:not|['’]t)\b", "can not", text.casefold())
    plain = re.sub(r"n['’]t\b", " not", plain)
    return set(_WORD.findall(re.sub(r"['’](?:s|d|ll|m|ve|re)\b", "", plain)))


def _stems(words: set[str]) -> set[str]:
    """Return the content words by their first letters: "expect" and "expecting" are one."""
    return {word[:5] for word in words - _FUNCTION_WORDS}


def _common(one: set[str], other: set[str]) -> float:
    return len(one & other) / len(one | other) if one or other else 0.0
