#!/usr/bin/perl
# An agent in Perl, with no module beyond those of the smallest installation (Debian's perl-base).
# It answers questions about the logs in logs/, and tells Proctor of every tool it called.
#
#   in:  one line of JSON    {"input": "How many errors ...", "seed": 7, "workdir": "...", ...}
#   out: one line of JSON    {"answer": "...", "tool_calls": [{"name", "arguments", "result"}, ...]}
use strict;
use warnings;
use File::Basename qw(dirname);
use lib dirname(__FILE__);
use TinyJson qw(read_json write_json);

my $LOGS = dirname(__FILE__) . '/logs';
my $CARELESS = grep { $_ eq '--careless' } @ARGV;
my @calls;    # what was done, in order: the spans of the trial

# -- tools: each call is recorded with its arguments and with what came of it ---------------------

sub call_tool {
    my ($name, $tool, %arguments) = @_;
    my $call = { name => $name, arguments => \%arguments };
    push @calls, $call;
    my $result = eval { $tool->(%arguments) };
    if ($@) {
        ($call->{error}) = $@ =~ /^(.*?)(?: at \S+ line \d+)?\.?\n/;
        return undef;
    }
    $call->{result} = $result;
    return $result;
}

sub list_services {
    opendir(my $folder, $LOGS) or die "no folder of logs\n";
    return [sort map { s/\.log$//r } grep { /\.log$/ } readdir $folder];
}

sub read_log {
    my (%arguments) = @_;
    # A name comes from a question: it must not lead out of the folder.
    die "bad name $arguments{service}\n" unless $arguments{service} =~ /^[a-z]+$/;
    open(my $file, '<', "$LOGS/$arguments{service}.log") or die "no log of $arguments{service}\n";
    my @lines = grep { !$arguments{level} || /\b$arguments{level}\b/ } <$file>;
    chomp @lines;
    return \@lines;
}

# -- the agent: a few rules where a model would be ------------------------------------------------

sub answer {
    my ($question) = @_;
    my ($service) = $question =~ /\b(?:the|of)\s+([a-z]+)\s+(?:service|log)/i;
    return 'Which service? Please name one.' unless $service;
    $service = lc $service;
    if ($CARELESS) {    # guesses, and reads the same thing over and over
        call_tool('read_log', \&read_log, service => $service) for 1 .. 4;
        return "The $service service had 5 errors.";
    }
    my $known = call_tool('list_services', \&list_services);
    unless (grep { $_ eq $service } @$known) {
        return "There is no log of $service. I can read: " . join(', ', @$known) . '.';
    }
    my $errors = call_tool('read_log', \&read_log, service => $service, level => 'ERROR');
    my $count = @$errors;
    return "The $service service had no errors." unless $count;
    if ($question =~ /first|when/i) {
        my ($time) = $errors->[0] =~ /^(\S+)/;
        return "The first error of the $service service came at $time.";
    }
    return "The $service service had $count " . ($count == 1 ? 'error.' : 'errors.');
}

my $job = read_json(scalar <STDIN>);
my $answer = answer($job->{input});
print write_json({
    answer => $answer,
    tool_calls => \@calls,
    metadata => { language => 'perl' },
}), "\n";
